// Submits every golden vector with the driver of Node:  node vectors.mjs golden.json connection-string
// Prints one JSON object a line: what submit() returned, and the row that it inserted.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const { Client } = createRequire(`${process.env.NODE_PATH}/`)("pg");
const [vectors, connectionString] = process.argv.slice(2);
const client = new Client({ connectionString });
await client.connect();
for (const vector of JSON.parse(readFileSync(vectors, "utf8"))) {
    await client.query("BEGIN");
    const id = (await client.query(`SELECT runcue.${vector.call} AS id`)).rows[0].id;
    const { rows } = await client.query("SELECT kind, id, item FROM runcue.submissions ORDER BY number DESC LIMIT 1");
    await client.query("COMMIT");
    console.log(JSON.stringify({ id, row: rows[0] }));
}
const { rows } = await client.query("SELECT runcue.submit($1, $2, id => $3) AS id", [
    "summarize", { page: 7, text: "it's; -- 'ü'" }, "by-node",
]);
console.log(JSON.stringify({ id: rows[0].id }));
await client.end();
