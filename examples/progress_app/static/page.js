// Shows one job, live. The address names it (#job=…), so that a reload, or a restart of the server, loses nothing.

const at = (id) => document.getElementById(id);
const rows = new Map(); // id of a photo → its place in the list
let photos = new Map(); // id of a photo → what is known of it
let sheet = null;
let source = null;

const WORDS = {
  pending: "waits for a tray",
  running: "in a tray",
  retrying: "is tried again soon",
  completed: "developed",
  failed: "lost",
  cancelled: "cancelled",
};

function show(photo) {
  let row = rows.get(photo.id);
  if (!row) {
    at("list").append(at("row").content.cloneNode(true));
    row = at("list").lastElementChild;
    rows.set(photo.id, row);
    row.querySelector(".name").textContent = photo.photo;
    row.querySelector("progress").ariaLabel = photo.photo;
  }
  row.dataset.state = photo.state;
  row.querySelector("progress").value = photo.ended ? 1 : (photo.fraction ?? 0);
  const reason = photo.error && photo.state !== "running" ? `: ${photo.error.replace(/^\w+: /, "")}` : "";
  row.querySelector(".text").textContent = (photo.state === "running" && photo.text) || WORDS[photo.state] + reason;
}

function sum() {
  const all = [...photos.values()];
  const developed = all.filter((photo) => photo.state === "completed").length;
  const lost = all.filter((photo) => photo.ended).length - developed;
  const share = all.reduce((total, photo) => total + (photo.ended ? 1 : (photo.fraction ?? 0)), 0);
  at("whole").value = share / Math.max(1, all.length);
  at("headline").textContent = `${developed} of ${all.length} developed${lost ? `, ${lost} lost` : ""}`;
  at("sheet").dataset.state = sheet.state;
  at("sheet").textContent = sheet.ended
    ? `Contact sheet: ${sheet.result ?? "not made, because a photo is lost"}`
    : "The contact sheet is made when all photos are there.";
}

function take(job) {
  photos = new Map(job.photos.map((photo) => [photo.id, photo]));
  sheet = job.sheet;
  rows.clear();
  at("list").replaceChildren();
  job.photos.forEach(show);
  at("job").hidden = false;
  sum();
}

function change(news) {
  if (news.id === sheet.id) {
    sheet = news;
  } else {
    const photo = { ...photos.get(news.id), ...news };
    if (photo.state !== "running") photo.fraction = 0; // a new attempt begins anew
    photos.set(news.id, photo);
    show(photo);
  }
  sum();
}

function say(text, state = "") {
  at("connection").textContent = text;
  at("connection").dataset.state = state;
}

function follow(job) {
  source?.close();
  source = new EventSource(`jobs/${encodeURIComponent(job)}/events`);
  const on = (name, act) => source.addEventListener(name, (event) => act(JSON.parse(event.data)));
  source.onopen = () => say("live", "live");
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) say("There is no such job any more.", "away");
    else say("The server is away; this goes on when it is back.", "away");
  };
  on("job", take);
  on("progress", change);
  on("change", change);
  on("done", (job) => {
    source.close(); // or the browser would ask again
    take(job);
    say("done");
  });
}

async function develop(event) {
  event.preventDefault();
  at("problem").textContent = "";
  const names = at("photos").value.split("\n").map((line) => line.trim()).filter(Boolean);
  try {
    const answer = await fetch("jobs", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ photos: names }),
    });
    if (answer.status === 422) throw new Error("Give 1 to 60 photos, with names of up to 60 letters.");
    if (!answer.ok) throw new Error(`The server refused it (${answer.status}).`);
    location.hash = `job=${(await answer.json()).id}`;
  } catch (error) {
    at("problem").textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
}

function go() {
  const job = new URLSearchParams(location.hash.slice(1)).get("job");
  if (job) follow(job);
}

at("film").addEventListener("submit", develop);
addEventListener("hashchange", go);
go();
