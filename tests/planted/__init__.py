"""Faults that are planted into a copy of the product, to measure whether tests find them."""
