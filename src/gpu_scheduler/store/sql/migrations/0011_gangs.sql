-- That all members of a gang over several nodes were prepared, and where they meet; '' before that.
ALTER TABLE allocations ADD COLUMN meeting TEXT NOT NULL DEFAULT '';
