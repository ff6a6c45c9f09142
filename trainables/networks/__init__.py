"""Networks whose examples can be told apart."""
