// A browser's EventSource: prints each event that it dispatches as a line of JSON, and closes at `end`.
// node --experimental-eventsource event_source.mjs <url> <event name>...
const [url, ...names] = process.argv.slice(2);
const source = new EventSource(url);
// Its reconnection timer alone does not keep the process.
const staying = setInterval(() => {}, 1000);
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
source.onopen = () => say({ event: "(open)" });
source.onerror = () => say({ event: "(error)", state: source.readyState });
for (const name of names) {
  source.addEventListener(name, ({ type, data, lastEventId }) => {
    say({ event: type, id: lastEventId, data: JSON.parse(data) });
    if (type === "end") {
      source.close();
      clearInterval(staying);
    }
  });
}
