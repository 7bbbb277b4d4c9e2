"""The stores, with one package for each engine.

All engines give the guarantees that `stores.mail.access` lists.
"""
