-- A table per noun: the record as JSON in `doc`, its version, and the columns that indexes and constraints
-- need. Unique indexes are the guards of `ports::Constraint`; they hold whatever the caller checked before.
-- Times are microseconds since the Unix epoch.

CREATE TABLE project (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX project_name ON project (name);

CREATE TABLE token (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, hash TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX token_hash ON token (hash);
CREATE INDEX token_by_project ON token (project, id);

CREATE TABLE template (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX template_name ON template (project, name);
CREATE INDEX template_by_project ON template (project, id);

CREATE TABLE template_version (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, template TEXT NOT NULL, number INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX template_version_by_template ON template_version (template, number);

CREATE TABLE instance (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX instance_name ON instance (project, name);
CREATE INDEX instance_by_project ON instance (project, id);

CREATE TABLE run (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, instance TEXT NOT NULL,
    status TEXT NOT NULL, priority INTEGER NOT NULL, queued_at INTEGER, plan_run TEXT, doc TEXT NOT NULL
) STRICT;
-- At most one live promoted run per plan.
CREATE UNIQUE INDEX run_live_promotion ON run (plan_run)
    WHERE plan_run IS NOT NULL AND status IN ('pending_approval', 'queued', 'running', 'canceling');
-- Lists, newest first.
CREATE INDEX run_by_project ON run (project, id);
CREATE INDEX run_by_instance ON run (instance, id);
CREATE INDEX run_by_status ON run (project, status, id);
-- The queue in its order; only queued runs are in it, so it stays small however many runs there are.
CREATE INDEX run_queue ON run (priority DESC, queued_at, id) WHERE status = 'queued';
CREATE INDEX run_pending_approval ON run (id) WHERE status = 'pending_approval';

CREATE TABLE snapshot (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

CREATE TABLE attempt (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, run TEXT NOT NULL, number INTEGER NOT NULL,
    fence INTEGER NOT NULL, worker TEXT NOT NULL, slot INTEGER NOT NULL, state TEXT NOT NULL,
    exclusive TEXT, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX attempt_fence ON attempt (fence);
CREATE UNIQUE INDEX attempt_number ON attempt (run, number);
CREATE UNIQUE INDEX attempt_open_per_run ON attempt (run) WHERE state <> 'closed';
CREATE UNIQUE INDEX attempt_open_per_slot ON attempt (worker, slot) WHERE state <> 'closed';
CREATE UNIQUE INDEX attempt_exclusive_instance ON attempt (exclusive) WHERE exclusive IS NOT NULL AND state <> 'closed';
CREATE INDEX attempt_by_run ON attempt (run, id);
CREATE INDEX attempt_open ON attempt (id) WHERE state <> 'closed';

CREATE TABLE approval (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, status TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX approval_by_project ON approval (project, id);
CREATE INDEX approval_by_status ON approval (project, status, id);

CREATE TABLE worker (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX worker_name ON worker (name);
CREATE INDEX worker_by_session ON worker (session);

CREATE TABLE worker_contact (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

CREATE TABLE worker_key (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, worker TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX worker_key_by_worker ON worker_key (worker, id);

CREATE TABLE enrollment (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, hash TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX enrollment_hash ON enrollment (hash);

CREATE TABLE state_object (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, instance TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX state_object_instance ON state_object (instance);

CREATE TABLE state_generation (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, object TEXT NOT NULL, generation INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX state_generation_by_object ON state_generation (object, generation);

CREATE TABLE orphan_state (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, object TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX orphan_state_by_object ON orphan_state (object, id);

CREATE TABLE artifact (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, run TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX artifact_by_run ON artifact (run, id);

CREATE TABLE plan_artifact (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

CREATE TABLE secret (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX secret_name ON secret (project, name);
CREATE INDEX secret_by_project ON secret (project, id);

CREATE TABLE receipt (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

CREATE TABLE late_evidence (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, run TEXT NOT NULL, doc TEXT NOT NULL
) STRICT;
CREATE INDEX late_evidence_by_run ON late_evidence (run, id);

CREATE TABLE operator_decision (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

CREATE TABLE idempotency (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL
) STRICT;

-- Log bytes are not text, so a chunk has columns instead of a document.
CREATE TABLE log_chunk (
    attempt TEXT NOT NULL, start INTEGER NOT NULL, run TEXT NOT NULL, project TEXT NOT NULL,
    stream TEXT NOT NULL, at INTEGER NOT NULL, bytes BLOB NOT NULL,
    PRIMARY KEY (attempt, start)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a sequence number is never used twice, even after the newest row was lost.
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT, run TEXT, doc TEXT NOT NULL
) STRICT;
CREATE INDEX event_by_project ON event (project, seq);
CREATE INDEX event_by_run ON event (run, seq) WHERE run IS NOT NULL;

CREATE TABLE outbox (
    id TEXT PRIMARY KEY, doc TEXT NOT NULL
) STRICT;

-- History is never rewritten.
CREATE TRIGGER template_version_is_final BEFORE UPDATE ON template_version BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER template_version_stays BEFORE DELETE ON template_version BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER snapshot_is_final BEFORE UPDATE ON snapshot BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER snapshot_stays BEFORE DELETE ON snapshot BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER state_generation_is_final BEFORE UPDATE ON state_generation BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER state_generation_stays BEFORE DELETE ON state_generation BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER orphan_state_is_final BEFORE UPDATE ON orphan_state BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER orphan_state_stays BEFORE DELETE ON orphan_state BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER artifact_is_final BEFORE UPDATE ON artifact BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER artifact_stays BEFORE DELETE ON artifact BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER plan_artifact_is_final BEFORE UPDATE ON plan_artifact BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER plan_artifact_stays BEFORE DELETE ON plan_artifact BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER receipt_is_final BEFORE UPDATE ON receipt BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER receipt_stays BEFORE DELETE ON receipt BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER late_evidence_is_final BEFORE UPDATE ON late_evidence BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER late_evidence_stays BEFORE DELETE ON late_evidence BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER operator_decision_is_final BEFORE UPDATE ON operator_decision BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER operator_decision_stays BEFORE DELETE ON operator_decision BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER idempotency_is_final BEFORE UPDATE ON idempotency BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER idempotency_stays BEFORE DELETE ON idempotency BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER log_chunk_is_final BEFORE UPDATE ON log_chunk BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER log_chunk_stays BEFORE DELETE ON log_chunk BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER event_is_final BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER event_stays BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'immutable'); END;
