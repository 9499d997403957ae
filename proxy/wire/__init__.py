"""The data plane: HTTP/1.1 towards the merchant and towards the platform."""
