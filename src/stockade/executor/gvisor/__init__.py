"""The tier whose guests have a kernel of their own: gVisor's sentry, in user space."""
