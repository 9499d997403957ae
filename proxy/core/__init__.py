"""The pure core: values and functions; nothing here waits, reads a clock or knows a library."""
