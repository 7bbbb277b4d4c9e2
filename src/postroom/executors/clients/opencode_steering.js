// Loaded into `opencode run` by a run of ours. It puts what it is told at a socket into the session, where the turn
// at work takes it up with its next step, and says on stdout what the model was given.
import { connect } from "node:net"
import { createInterface } from "node:readline"

export const Postroom = async ({ client }) => {
  const socket = connect(process.env.POSTROOM_STEERING ?? "")
  const is_connected = await new Promise((resolve) => {
    socket.once("connect", () => resolve(true))
    socket.once("error", () => resolve(false))
  })
  if (!is_connected) return {} // another opencode, which that run has started
  socket.on("error", () => {})
  const told = new Map() // what was told and is not taken, by opencode's id of the message
  const newest = new Map() // the newest message that the model was given, by session
  socket.on("close", async () => {
    // Nobody is there to hear the answer: what it works on ends with it.
    await Promise.allSettled([...newest.keys()].map((id) => client.session.abort({ path: { id } })))
    process.exit(1)
  })
  const note = () => {
    for (const [id, { session, name }] of told) {
      if (!(id <= newest.get(session))) continue // ids ascend
      told.delete(id)
      process.stdout.write(`${JSON.stringify({ type: "postroom.taken", name })}\n`)
    }
  }
  const tell = async ({ session, name, text }) => {
    const body = { noReply: true, parts: [{ type: "text", text }] } // it begins no turn that nobody waits for
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
