"""Models that write kernels: the protocol of a chat model, litellm behind it, prompts and replies.

The only package that imports litellm, lazily, so that nothing else pays for it.
"""
