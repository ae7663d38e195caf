"""Problems: what a multi-GPU operator must compute, how exactly, on which shapes, at what cost."""
