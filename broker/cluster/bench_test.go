package cluster_test

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fleetd/broker"
	"fleetd/broker/cluster"
	"fleetd/broker/cluster/clustertest"
	"fleetd/broker/dialect"
	"fleetd/broker/edge"
	"fleetd/broker/link"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/internal/bus"
)

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// echo answers each call with as little work as possible.
func (d *device) echo() {
	topic := string(str("fleet/" + string(d.id) + "/up"))
	for {
		kind, body, err := d.read()
		if err != nil {
			return
		}
		if _, after, ok := strings.Cut(string(body), `"id":`); ok && kind>>4 == 3 {
			id, _, _ := strings.Cut(after, ",")
			_, _ = d.conn.Write(packet(0x30, []byte(topic+`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":`+id+
				`,"result":{"content":[{"type":"text","text":"true"}],"isError":false}}}`)))
		}
	}
}

// BenchmarkCall measures calls with edge and core in one process, without and with the bus between
// them. The CPU time includes the devices and, over the bus, the NATS server.
func BenchmarkCall(bench *testing.B) {
	const devices = 64
	for _, over := range []string{"process", "bus"} {
		for _, inFlight := range []int{1, 64} {
			bench.Run(fmt.Sprintf("link=%s/in-flight=%d", over, inFlight), func(bench *testing.B) {
				var c *core
				var addr net.Addr
				published := func() uint64 { return 0 }
				if over == "bus" {
					w := newWorld(bench)
					w.embedded = true
					c = w.core(1, nil)
					e := w.edge("edge", nil, nil)
					w.attached(e, 1)
					addr = e.Addr()
					published = func() uint64 { return c.nc.Stats().OutMsgs + e.nc.Stats().OutMsgs }
				} else {
					c = &core{domain: new(domain)}
					var err error
					if c.Broker, err = broker.New(broker.Options{Devices: c.domain}); err != nil {
						bench.Fatal(err)
					}
					e, err := edge.New(edge.Options{Addr: "127.0.0.1:0", Core: c.Broker, Node: "edge"})
					if err != nil {
						bench.Fatal(err)
					}
					bench.Cleanup(clustertest.Run(bench, c.Broker.Run))
					bench.Cleanup(clustertest.Run(bench, e.Run))
					addr = e.Addr()
				}
				for n := range devices {
					d := dialWith(bench, addr, n, (*device).echo)
					if d == nil {
						bench.Fatal("refused")
					}
					c.connected(bench, n)
				}
				took := make([][]time.Duration, inFlight)
				var next atomic.Int64
				var wg sync.WaitGroup
				bench.ReportAllocs()
				bench.ResetTimer()
				before, messages := cpu(), published()
				for i := range inFlight {
					id := deviceID(i)
					wg.Go(func() {
						for next.Add(1) <= int64(bench.N) {
							begin := time.Now()
							if err := c.call(id, `{"volume":50}`, deadline); err != nil {
								bench.Error(err)
								return
							}
							took[i] = append(took[i], time.Since(begin))
						}
					})
				}
				wg.Wait()
				used := cpu() - before
				bench.StopTimer()
				bench.ReportMetric(float64(published()-messages)/float64(bench.N), "batches/op")
				all := slices.Concat(took...)
				slices.Sort(all)
				bench.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
				bench.ReportMetric(float64(used.Microseconds())/float64(bench.N), "cpu-µs/op")
			})
		}
	}
}

// A counter is a core that admits everything, and counts.
type counter struct{ opened, adopted atomic.Int64 }

func (c *counter) Open(q link.Connect, _ link.Carrier) (link.Connection, error) {
	c.opened.Add(1)
	return still{fleet.Connection{Device: q.Device, ClientID: q.ClientID, Node: q.Node, Transport: q.Transport,
		RemoteAddr: q.RemoteAddr, At: time.Now().UTC(), Epoch: time.Now().UnixMicro()}}, nil
}

func (c *counter) Adopt(_ link.Connect, facts fleet.Connection, _ link.Carrier) link.Connection {
	c.adopted.Add(1)
	return still{facts}
}

// A still connection ignores its events.
type still struct{ facts fleet.Connection }

func (s still) Facts() fleet.Connection         { return s.facts }
func (still) Establish()                        {}
func (still) Established()                      {}
func (still) Seen()                             {}
func (still) Receive(link.Message)              {}
func (still) Converse(link.Event)               {}
func (still) Closed(bool, fleet.Cause)          {}
func (still) Begin(dialect.Address, int) []byte { return nil }
func (still) Post([]byte) error                 { return nil }
func (still) Notify([]byte) error               { return nil }
func (still) Finish()                           {}
func (still) Stop(fleet.Cause)                  {}
func heap() (n uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestAttach measures how long connections take to attach to a new leader, and what one costs both
// sides of the link. CLUSTER_CONNECTIONS sets their number.
func TestAttach(t *testing.T) {
	connections, _ := strconv.Atoi(os.Getenv("CLUSTER_CONNECTIONS"))
	if connections == 0 {
		connections = 2000
	}
	w := newWorld(t)
	id := w.bus.Identity(t, "edge", bus.Edge)
	e := &edgeNode{nc: w.bus.Connect(t, w.ctx, id)}
	defer e.nc.Close()
	e.link = cluster.NewEdge(cluster.EdgeOptions{Bus: e.nc, Cluster: id.Cluster, Name: "edge", Log: w.log,
		AdmitTimeout: deadline})
	defer clustertest.Run(t, e.link.Run)()
	lead := func(term int, adopter link.Adopter) (*cluster.Core, func()) {
		nc := w.bus.Connect(t, w.ctx, w.bus.Core)
		c := cluster.NewCore(cluster.CoreOptions{Bus: nc, Cluster: id.Cluster, Core: adopter, Log: w.log,
			Leader: cluster.Leader{Term: term, Name: "core"}})
		end := clustertest.Run(t, c.Run)
		return c, func() { end(); nc.Close() }
	}
	first := new(counter)
	one, endFirst := lead(1, first)
	w.attached(e, 1)
	ids := make([]string, connections)
	for n := range ids {
		ids[n] = clientID(n)
	}
	before := heap()
	var wg sync.WaitGroup
	for worker := range 64 {
		wg.Go(func() {
			for n := worker; n < connections; n += 64 {
				said := dialect.Connect{ClientID: ids[n], Username: "user", Version: 4}
				d, device := dialect.OverMQTT(said)
				c, err := e.link.Open(link.Connect{Device: device, ClientID: ids[n], Username: "user",
					Password: []byte(passwordOf(ids[n])), Transport: link.MQTT, RemoteAddr: "192.0.2.1",
					LocalHost: "192.0.2.2", Said: said, Dialect: d}, still{})
				if err != nil {
					t.Error(err)
					return
				}
				c.Establish()
				c.Established()
			}
		})
	}
	begin := time.Now()
	wg.Wait()
	t.Logf("%d connections admitted in %v", connections, time.Since(begin))
	fleettest.Eventually(t, "the connections", func() bool { return one.Stats().Connections == int64(connections) })
	both := heap() - before
	endFirst()
	withEdge := heap() - before
	t.Logf("%d bytes for each connection at the edge, %d at the core", withEdge/uint64(connections),
		(both-withEdge)/uint64(connections))
	adopters := []link.Adopter{new(counter)}
	d := new(domain)
	real, err := broker.New(broker.Options{Devices: d})
	if err != nil {
		t.Fatal(err)
	}
	defer clustertest.Run(t, real.Run)()
	adopters = append(adopters, real)
	for i, adopter := range adopters {
		began, used := time.Now(), cpu()
		c, end := lead(2+i, adopter)
		for c.Stats().Connections < int64(connections) {
			time.Sleep(time.Millisecond)
		}
		t.Logf("%d connections attached to a %T in %v, with %v of CPU", connections, adopter, time.Since(began), cpu()-used)
		end()
	}
}
