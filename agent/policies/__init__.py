"""Policies: what proposes the next candidate. `create_policy` makes one from a job's policy string.

Their libraries (optuna, litellm) are imported only when a job needs them.
"""

from __future__ import annotations

from pathlib import Path

from agent.llm.protocol import ChatModel, LlmSettings
from agent.loop import Policy
from agent.spec import JobSpec, SpecError, parse_policy
from pk_runtime.target import parse_target
from problems.description import Description


def create_policy(
    spec: JobSpec,
    *,
    problem: Description | None = None,
    llm: LlmSettings | None = None,
    chat: ChatModel | None = None,
) -> Policy:
    """Return the policy that `spec.policy` names.

    `llm:` needs the problem's description at the target's world size; `llm` says how to reach
    models, and `chat` replaces litellm. Raises SpecError for an unknown policy, or one that cannot
    work on this job.
    """
    policy = parse_policy(spec.policy)
    if policy.kind == "tuner":
        from agent.policies.tuner import Tuner

        return Tuner(spec)
    if policy.kind == "scripted":
        from agent.policies.scripted import Scripted, read_script

        return Scripted(spec.scripted or read_script(Path(policy.argument)))
    if problem is None:
        raise SpecError(f"policy {spec.policy!r} needs the problem's description")
    from agent.llm.litellm_client import LiteLlm
    from agent.llm.prompt import Prompt
    from agent.policies.llm import LlmPolicy

    settings = llm or LlmSettings()
    model = chat or LiteLlm(policy.argument, settings)
    prompt = Prompt(problem, parse_target(spec.target), spec.shape)
    return LlmPolicy(spec, model, prompt, settings.max_tokens)
