-- Workers read their own messages where the outbox itself is the job queue.
ALTER TABLE outbox ADD COLUMN worker TEXT NOT NULL DEFAULT '';
UPDATE outbox SET worker = json_extract(doc, '$.job.worker');
CREATE INDEX outbox_by_worker ON outbox (worker, id);
