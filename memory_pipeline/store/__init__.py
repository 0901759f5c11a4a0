"""Authoritative documents: conditional Put and Withdraw with receipts, every generation kept, keyword search."""
