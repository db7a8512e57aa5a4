"""The control plane: tenants, keys, policy, budgets, audit. It touches no runtime."""
