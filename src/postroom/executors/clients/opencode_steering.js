// postroom loads this plugin into `opencode run`. The plugin reads messages from a socket and adds them to the session,
// where the active turn reads them at its next step. It reports on stdout which messages the model has received.
import { connect } from "node:net"
import { createInterface } from "node:readline"

export const Postroom = async ({ client }) => {
  const socket = connect(process.env.POSTROOM_STEERING ?? "")
  const is_connected = await new Promise((resolve) => {
    socket.once("connect", () => resolve(true))
    socket.once("error", () => resolve(false))
  })
  if (!is_connected) return {} // another opencode process, which the run's own process has started
  socket.on("error", () => {})
  const told = new Map() // the messages that the model has not received yet, keyed by opencode's message id
  const newest = new Map() // session -> the id of the newest message that the model has received
  socket.on("close", async () => {
    // The server has closed the socket, so nobody reads the answer: stop the active turns and exit.
    await Promise.allSettled([...newest.keys()].map((id) => client.session.abort({ path: { id } })))
    process.exit(1)
  })
  const note = () => {
    for (const [id, { session, name }] of told) {
      if (!(id <= newest.get(session))) continue // the model has not received it yet: ids ascend
      told.delete(id)
      process.stdout.write(`${JSON.stringify({ type: "postroom.taken", name })}\n`)
    }
  }
  const tell = async ({ session, name, text }) => {
    const body = { noReply: true, parts: [{ type: "text", text }] } // without `noReply`, this would begin another turn
    const { data } = await client.session.prompt({ path: { id: session }, body })
    if (data?.info) told.set(data.info.id, { session, name })
    note()
  }
  let before = Promise.resolve()
  createInterface({ input: socket }).on("line", (line) => {
    before = before.then(() => tell(JSON.parse(line))).catch(() => {})
  })
  return {
    event: async ({ event }) => {
      const info = event.type === "message.updated" ? event.properties.info : {}
      if (info.role !== "assistant" || !info.parentID) return
      newest.set(info.sessionID, info.parentID)
      note()
    },
  }
}
