"""A local payment platform that keeps the platform contract, with fault injection."""
