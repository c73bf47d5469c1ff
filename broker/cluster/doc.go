// Package cluster carries the link between edges and the core over NATS: [Edge] is the core as an
// edge sees it, and [Core] gives the leading core the connections of all edges.
//
// NATS may lose messages when one of its connections breaks. Each edge therefore has two streams of
// numbered batches with the leader of a term, one in each direction. The receiver asks for what it
// misses, at the latest after the beat that each end publishes every second, and at once after the
// connection to the bus was lost. A batch contains the frames that were added while the previous one
// was being sent: batches are small on an idle link, and large under load. Frames keep their order,
// and each arrives once. A stream that has too much to send refuses more.
//
// The streams belong to a term. When an edge hears of a later term, it abandons those of the earlier
// one, and announces all its connections to the new leader, which adopts them; devices notice
// nothing. From then on the edge ignores whatever the earlier leader sends.
//
// A leader that no longer knows an edge makes it announce its connections again. If two edges use one
// name, the one that started last is served.
//
// No signing key and no password of the database reaches an edge.
package cluster
