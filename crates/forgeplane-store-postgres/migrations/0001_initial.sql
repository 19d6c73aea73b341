-- A table per noun: the record as JSON in `doc`, its version, and the columns that indexes and constraints
-- need. Unique indexes are the guards of `ports::Constraint`; they hold whatever the caller checked before.
-- Ids are compared byte by byte, so that their order is the order of creation. Times are microseconds since
-- the Unix epoch.

CREATE TABLE project (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, name TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX project_name ON project (name);

CREATE TABLE token (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX token_hash ON token (hash);
CREATE INDEX token_by_project ON token (project, id);

CREATE TABLE template (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX template_name ON template (project, name);
CREATE INDEX template_by_project ON template (project, id);

CREATE TABLE template_version (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, template TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX template_version_by_template ON template_version (template, number);

CREATE TABLE instance (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX instance_name ON instance (project, name);
CREATE INDEX instance_by_project ON instance (project, id);

-- No indexed column of a run ever changes, so that its updates stay within their page (heap-only).
CREATE TABLE run (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    instance TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
) WITH (fillfactor = 60);
CREATE INDEX run_by_project ON run (project, id);
CREATE INDEX run_by_instance ON run (instance, id);

-- What of a run does change and is looked for.
CREATE TABLE run_status (
    id TEXT COLLATE "C" PRIMARY KEY, project TEXT COLLATE "C" NOT NULL, status TEXT COLLATE "C" NOT NULL,
    priority BIGINT NOT NULL, queued_at BIGINT, plan_run TEXT COLLATE "C"
) WITH (fillfactor = 70);
-- At most one live promoted run per plan.
CREATE UNIQUE INDEX run_live_promotion ON run_status (plan_run)
    WHERE plan_run IS NOT NULL AND status IN ('pending_approval', 'queued', 'running', 'canceling');
CREATE INDEX run_by_status ON run_status (project, status, id);
-- The queue in its order; only queued runs are in it, so it stays small however many runs there are.
CREATE INDEX run_queue ON run_status (priority DESC, queued_at, id) WHERE status = 'queued';
CREATE INDEX run_pending_approval ON run_status (id) WHERE status = 'pending_approval';

CREATE TABLE snapshot (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
);

CREATE TABLE attempt (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, run TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL,
    fence BIGINT NOT NULL, worker TEXT COLLATE "C" NOT NULL, slot BIGINT NOT NULL, open BOOLEAN NOT NULL,
    exclusive TEXT COLLATE "C", doc TEXT NOT NULL
) WITH (fillfactor = 60);
CREATE UNIQUE INDEX attempt_fence ON attempt (fence);
CREATE UNIQUE INDEX attempt_number ON attempt (run, number);
CREATE UNIQUE INDEX attempt_open_per_run ON attempt (run) WHERE open;
CREATE UNIQUE INDEX attempt_open_per_slot ON attempt (worker, slot) WHERE open;
CREATE UNIQUE INDEX attempt_exclusive_instance ON attempt (exclusive) WHERE exclusive IS NOT NULL AND open;
CREATE INDEX attempt_by_run ON attempt (run, id);
CREATE INDEX attempt_open ON attempt (id) WHERE open;
CREATE SEQUENCE fence AS BIGINT MINVALUE 1 NO CYCLE;

CREATE TABLE approval (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX approval_by_project ON approval (project, id);
CREATE INDEX approval_by_status ON approval (project, status, id);

CREATE TABLE worker (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, name TEXT COLLATE "C" NOT NULL,
    session TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
) WITH (fillfactor = 60);
CREATE UNIQUE INDEX worker_name ON worker (name);
CREATE INDEX worker_by_session ON worker (session);

CREATE TABLE worker_contact (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE worker_key (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, worker TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX worker_key_by_worker ON worker_key (worker, id);

CREATE TABLE enrollment (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, hash TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX enrollment_hash ON enrollment (hash);

CREATE TABLE state_object (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, instance TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX state_object_instance ON state_object (instance);

CREATE TABLE state_generation (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, object TEXT COLLATE "C" NOT NULL,
    generation BIGINT NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX state_generation_by_object ON state_generation (object, generation);

CREATE TABLE orphan_state (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, object TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX orphan_state_by_object ON orphan_state (object, id);

CREATE TABLE artifact (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, run TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX artifact_by_run ON artifact (run, id);

CREATE TABLE plan_artifact (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
);

CREATE TABLE secret (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE UNIQUE INDEX secret_name ON secret (project, name);
CREATE INDEX secret_by_project ON secret (project, id);

CREATE TABLE receipt (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
);

CREATE TABLE late_evidence (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, run TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX late_evidence_by_run ON late_evidence (run, id);

CREATE TABLE operator_decision (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
);

CREATE TABLE idempotency (
    id TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL, doc TEXT NOT NULL
);

-- Log bytes are not text, so a chunk has columns instead of a document. An attempt's id says when it was made:
-- a partition holds the logs of the attempts of a month, and retention drops whole partitions.
CREATE TABLE log_chunk (
    attempt TEXT COLLATE "C" NOT NULL, start BIGINT NOT NULL, run TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL, stream TEXT COLLATE "C" NOT NULL, at BIGINT NOT NULL, bytes BYTEA NOT NULL,
    PRIMARY KEY (attempt, start)
) PARTITION BY RANGE (attempt);
-- Logs are compressed by nobody here: the server would spend its time on bytes that are read once or never.
ALTER TABLE log_chunk ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE event (
    seq BIGINT PRIMARY KEY, project TEXT COLLATE "C", run TEXT COLLATE "C", doc TEXT NOT NULL
) PARTITION BY RANGE (seq);
CREATE INDEX event_by_project ON event (project, seq);
CREATE INDEX event_by_run ON event (run, seq) WHERE run IS NOT NULL;

-- The newest sequence number. A transaction that appends events holds this row until it has committed, so that
-- numbers become visible in their order and without gaps.
CREATE TABLE event_head (
    single BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (single), seq BIGINT NOT NULL
) WITH (fillfactor = 10);
INSERT INTO event_head (seq) VALUES (0);

CREATE TABLE outbox (
    id TEXT COLLATE "C" PRIMARY KEY, worker TEXT COLLATE "C" NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX outbox_by_worker ON outbox (worker, id);

-- Sealed bytes, for installations without an object store.
CREATE TABLE blob (
    name TEXT COLLATE "C" PRIMARY KEY, bytes BYTEA NOT NULL
);
-- They are ciphertext: compressing it finds nothing.
ALTER TABLE blob ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- History is never rewritten.
CREATE FUNCTION forgeplane_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON template_version FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON snapshot FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON state_generation FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON orphan_state FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON artifact FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON plan_artifact FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON receipt FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON late_evidence FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON operator_decision FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON idempotency FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON log_chunk FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON event FOR EACH ROW EXECUTE FUNCTION forgeplane_immutable();

-- Partitions are made when they are first needed, also by a role that may not create tables itself.
CREATE FUNCTION forgeplane_event_partition(number BIGINT, size BIGINT) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('forgeplane_event_partition', number));
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF event FOR VALUES FROM (%s) TO (%s)',
        'event_' || lpad(number::text, 6, '0'), number * size, (number + 1) * size);
END
$$;
CREATE FUNCTION forgeplane_log_partition(month TEXT, first_attempt TEXT, next_attempt TEXT) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('forgeplane_log_partition' || month, 0));
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF log_chunk FOR VALUES FROM (%L) TO (%L)',
        'log_chunk_' || month, first_attempt, next_attempt);
END
$$;
