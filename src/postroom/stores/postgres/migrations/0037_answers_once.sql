-- after: 0037
--
-- The answer of a run stands in the row of the run. A message, an event or a dispatch that tells the same answer names
-- the run instead, and is stored without the text. NULL: it holds its own text, as all rows of releases before do.
-- A server of a release before would give a model conversations without these answers: none may be up.
ALTER TABLE run_messages ADD COLUMN answer_of text COLLATE "C";
ALTER TABLE events ADD COLUMN answer_of text COLLATE "C";
ALTER TABLE run_dispatches ADD COLUMN answer_of text COLLATE "C";
