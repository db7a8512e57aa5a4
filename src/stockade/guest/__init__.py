"""What runs inside a sandbox: standard library only, shipped into it as files."""
