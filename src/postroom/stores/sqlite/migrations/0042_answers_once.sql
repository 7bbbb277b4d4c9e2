-- The answer of a run stands in the row of the run. A message, an event or a dispatch that tells the same answer names
-- the run instead, and is stored without the text. NULL: it holds its own text, as all rows of releases before do.
ALTER TABLE run_messages ADD COLUMN answer_of TEXT;
ALTER TABLE events ADD COLUMN answer_of TEXT;
ALTER TABLE run_dispatches ADD COLUMN answer_of TEXT;
