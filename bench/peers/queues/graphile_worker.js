// The handler of graphile-worker, and what runs it: node graphile_worker.js prepare|run DSN.
//
// The board is the file that board.py describes: 8 bytes for "stop", 64 ids of processes, 64 counts, then moments.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");

const home = createRequire(path.join(process.env.RUNCUE_BENCH_HOME, "package.json"));
const { run, runMigrations } = home("graphile-worker");
const { Logger } = home("graphile-worker");

const [, , what, dsn] = process.argv;
const MOST = 64;
const TIMED = 2048;
const COUNTS = 8 + MOST * 8;
const MOMENTS = COUNTS + MOST * 8;
const quiet = new Logger(() => () => {});

// Its driver reads the folder of a socket from the query.
const url = new URL(dsn.replace("postgresql://", "http://").replace("@/", "@socket/"));
const connection = {
    user: url.username,
    host: url.searchParams.get("host") || url.hostname,
    port: Number(url.searchParams.get("port") || url.port || 5432),
    database: url.pathname.slice(1),
};
const { Pool } = home("pg");
const pool = new Pool({ ...connection, max: 25 });
pool.on("error", () => {});

function board() {
    const file = process.env.RUNCUE_BENCH_BOARD;
    let place = MOST - 1;
    for (; ; place -= 1) {
        try {
            fs.closeSync(fs.openSync(`${file}.${place}`, "wx"));
            break;
        } catch (error) {
            if (error.code !== "EEXIST") throw error;
        }
    }
    const numbers = fs.openSync(file, "r+");
    const buffer = Buffer.alloc(8);
    let ran = 0n;
    const write = (value, at) => {
        buffer.writeBigInt64LE(value);
        fs.writeSync(numbers, buffer, 0, 8, at);
    };
    write(BigInt(process.pid), 8 + place * 8);
    return (page) => {
        if (process.env.RUNCUE_BENCH_MODE !== "count" && page >= 0 && page < TIMED) {
            const moment = Buffer.alloc(8);
            moment.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9);
            fs.writeSync(numbers, moment, 0, 8, MOMENTS + page * 8);
        }
        ran += 1n;
        write(ran, COUNTS + place * 8);
    };
}

async function main() {
    if (what === "prepare") {
        await runMigrations({ pgPool: pool, logger: quiet });
        await pool.end();
        return;
    }
    const begin = board();
    const work = async ({ page }) => {
        begin(page);
        if (process.env.RUNCUE_BENCH_MODE === "hang") await new Promise((done) => setTimeout(done, 120000));
    };
    const runner = await run({
        pgPool: pool,
        logger: quiet,
        taskList: { work },
        preset: {
            worker: {
                concurrentJobs: 24,
                maxPoolSize: 25,
                localQueue: { size: 500 },
                completeJobBatchDelay: 0,
                failJobBatchDelay: 0,
            },
        },
    });
    await runner.promise;
}

main().catch((error) => {
    process.stderr.write(`${error.name || "Error"}: ${error.message}\n`);
    process.exit(1);
});
