-- Which installation a server's name belongs to, so that two servers of one name are told apart.
-- Empty: a server of an older version.
ALTER TABLE servers ADD COLUMN home text NOT NULL DEFAULT '';
