"""Durable spending: charged before it runs, never uncharged."""
