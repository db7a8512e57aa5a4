"""The microVM tier: each sandbox has a kernel of its own, on a machine that a VMM makes."""
