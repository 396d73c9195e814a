"""The functions by which SQL submits to a queue: from triggers, from other languages, from `psql`.

Rules:
- They run with the rights of the queue's owner, and only on its tables: whatever a caller has on the search path, and
  whatever temporary tables. Nobody may call them but whom the owner grants it.
- What they insert is what a Client inserts (runcue/stores/sql/submissions.py). What does not fit is an error here
  where it can be seen at once, and a failed unit otherwise.
- These texts are parts of steps of MIGRATIONS: once released they are never changed.
"""

from __future__ import annotations

from typing import Final

GRANTED: Final = ("submit", "cancel", "retry", "schedule", "unschedule")
"""The functions that the owner grants together: all that there are."""
LARGEST_PARAMS: Final = 1024 * 1024
"""Bytes of params as text."""

FUNCTIONS: Final = f"""
    SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

    CREATE FUNCTION submit(
        task text,
        params jsonb DEFAULT '{{}}',
        idempotency_key text DEFAULT NULL,
        run_at timestamptz DEFAULT NULL,
        delay interval DEFAULT NULL,
        depends_on text[] DEFAULT NULL,
        priority double precision DEFAULT NULL,
        queue text DEFAULT NULL,
        timeout interval DEFAULT NULL,
        target text DEFAULT NULL,
        id text DEFAULT NULL
    ) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $function$
    #variable_conflict use_variable
    DECLARE
        options jsonb := jsonb_strip_nulls(jsonb_build_object(
            'task', task, 'idempotency_key', idempotency_key, 'run_at', extract(epoch FROM run_at),
            'delay', extract(epoch FROM delay), 'depends_on', to_jsonb(depends_on), 'priority', priority,
            'queue', queue, 'timeout', extract(epoch FROM timeout), 'target', target));
        unit text := coalesce(id,
            lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || left(replace(gen_random_uuid()::text, '-', ''), 20));
    BEGIN
        IF coalesce(task, '') = '' OR length(task) > 128 THEN
            RAISE EXCEPTION 'submit() needs the name of a task, of at most 128 characters'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF coalesce(jsonb_typeof(params), 'null') <> 'object' THEN
            RAISE EXCEPTION 'the params of a unit are a JSON object, not %', coalesce(jsonb_typeof(params), 'null')
                USING ERRCODE = 'invalid_parameter_value', HINT = 'jsonb_build_object(''page'', 3) makes one.';
        END IF;
        IF octet_length(params::text) > {LARGEST_PARAMS} THEN
            RAISE EXCEPTION 'the params of a unit take % bytes, more than {LARGEST_PARAMS}',
                octet_length(params::text)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Store large values elsewhere, and submit keys.';
        END IF;
        IF unit = '' OR length(unit) > 128 THEN
            RAISE EXCEPTION 'an id has 1 to 128 characters' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        INSERT INTO submissions (at, kind, id, item)
            SELECT greatest(head.now, extract(epoch FROM clock_timestamp())::float8 + head.clock_offset), 'submit',
                unit, (options || jsonb_build_object('params', params))::text
            FROM head;
        RETURN unit;
    END
    $function$;

    CREATE FUNCTION cancel(id text, cascade boolean DEFAULT false)
    RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $function$
        INSERT INTO submissions (at, kind, id, item)
            SELECT head.now, 'cancel', $1, json_build_object('cascade', coalesce($2, false))::text FROM head
    $function$;

    CREATE FUNCTION retry(id text, cascade boolean DEFAULT false)
    RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $function$
        INSERT INTO submissions (at, kind, id, item)
            SELECT head.now, 'retry', $1, json_build_object('cascade', coalesce($2, false))::text FROM head
    $function$;

    REVOKE ALL ON FUNCTION submit, cancel, retry FROM PUBLIC;
"""
"""For a session whose search path is the schema of the queue."""

SCHEDULES: Final = f"""
    SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

    CREATE FUNCTION schedule(
        name text,
        task text,
        params jsonb DEFAULT '{{}}',
        cron text DEFAULT NULL,
        every interval DEFAULT NULL,
        tz text DEFAULT NULL,
        overlap text DEFAULT NULL,
        missed text DEFAULT NULL,
        jitter interval DEFAULT NULL,
        priority double precision DEFAULT NULL,
        queue text DEFAULT NULL,
        start timestamptz DEFAULT NULL,
        until timestamptz DEFAULT NULL
    ) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $function$
    #variable_conflict use_variable
    DECLARE
        options jsonb := jsonb_strip_nulls(jsonb_build_object(
            'task', task, 'cron', cron, 'every', extract(epoch FROM every), 'tz', tz, 'overlap', overlap,
            'missed', missed, 'jitter', extract(epoch FROM jitter), 'priority', priority, 'queue', queue,
            'start', extract(epoch FROM start), 'until', extract(epoch FROM until)));
    BEGIN
        IF coalesce(name, '') = '' OR length(name) > 128 THEN
            RAISE EXCEPTION 'schedule() needs a name, of at most 128 characters'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF coalesce(task, '') = '' OR length(task) > 128 THEN
            RAISE EXCEPTION 'schedule() needs the name of a task, of at most 128 characters'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (cron IS NULL) = (every IS NULL) THEN
            RAISE EXCEPTION 'a schedule has either cron => or every =>'
                USING ERRCODE = 'invalid_parameter_value', HINT = 'every => ''5 minutes'', or cron => ''0 3 * * *''.';
        END IF;
        IF coalesce(jsonb_typeof(params), 'null') <> 'object' THEN
            RAISE EXCEPTION 'the params of a unit are a JSON object, not %', coalesce(jsonb_typeof(params), 'null')
                USING ERRCODE = 'invalid_parameter_value', HINT = 'jsonb_build_object(''page'', 3) makes one.';
        END IF;
        IF octet_length(params::text) > {LARGEST_PARAMS} THEN
            RAISE EXCEPTION 'the params of a unit take % bytes, more than {LARGEST_PARAMS}',
                octet_length(params::text)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Store large values elsewhere, and submit keys.';
        END IF;
        INSERT INTO submissions (at, kind, id, item)
            SELECT head.now, 'schedule', name, (options || jsonb_build_object('params', params))::text FROM head;
    END
    $function$;

    CREATE FUNCTION unschedule(name text)
    RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $function$
        INSERT INTO submissions (at, kind, id, item)
            SELECT head.now, 'unschedule', $1, '{{}}' FROM head WHERE $1 IS NOT NULL
    $function$;

    REVOKE ALL ON FUNCTION schedule, unschedule FROM PUBLIC;
"""
"""The same, of schedules."""
