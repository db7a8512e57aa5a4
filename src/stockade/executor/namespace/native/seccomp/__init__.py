"""The seccomp allow-list of the namespace tier: policy, numbers, generator."""
