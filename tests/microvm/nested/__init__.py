"""A machine in which QEMU emulates a CPU that runs guests, and in it Stockade, with KVM."""
