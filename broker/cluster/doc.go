// Package cluster carries the link between edges and the core over NATS: [Edge] is the core as an
// edge sees it, and [Core] gives the leading core the connections of all edges.
//
// NATS may lose messages when one of its connections breaks. Each edge therefore has two streams of
// numbered batches with the leader of a term, one in each direction, which repeat what was not
// acknowledged. A batch contains the frames that were added while the previous one was being sent:
// batches are small on an idle link, and large under load. Frames keep their order.
//
// The streams belong to a term. When an edge hears of a later term, it abandons those of the earlier
// one, and announces all its connections to the new leader, which adopts them; devices notice
// nothing. From then on the edge ignores whatever the earlier leader sends.
//
// No signing key and no password of the database reaches an edge.
package cluster
