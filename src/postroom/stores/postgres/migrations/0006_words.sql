-- What earlier versions called a letter is a message.

UPDATE run_outbox SET lane = 'mail' WHERE lane = 'letters';
