"""Ledgers: durable spending, charged before it runs and never uncharged."""
