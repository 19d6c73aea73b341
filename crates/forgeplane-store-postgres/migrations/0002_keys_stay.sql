-- A key verifies what was signed with it, and what was signed is never removed.
CREATE FUNCTION forgeplane_permanent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER permanent BEFORE DELETE ON worker_key FOR EACH ROW EXECUTE FUNCTION forgeplane_permanent();
