"""The tier of dedicated machines: each is booted for one job, has a disk, and is attested."""
