"""The stores of mail, runs and chats, with one package for each database engine.

On every engine, the stores give the guarantees that `stores.mail.access` lists.
"""
