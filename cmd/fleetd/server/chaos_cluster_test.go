package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/internal/bus"
)

// A chaosCluster is what a world of two cores and two edges has beyond a single fleetd. All links
// between nodes, and from cores to the database, go through proxies.
type chaosCluster struct {
	w            *chaosWorld
	cores, edges []*chaosProcess
	balancer     *chaosProxy   // HTTP of the clients
	buses        []*chaosProxy // the first two from edge-1 to the cores, the others from edge-2
	routes       []*chaosProxy // from a core to the other
	internal     []*chaosProxy // from the edges to a core
	databases    []*chaosProxy // from a core

	stop context.CancelFunc // of the watch over the leaders

	mu        sync.Mutex
	fault     chaosFault
	disturbed bool // a fault is under way, or its effects
	cut       [][2]time.Time
	both      []time.Time // two cores answered as leader
	led       []time.Time // a core began to lead
}

// startCluster starts the nodes.
func (w *chaosWorld) startCluster() (err error) {
	c := &chaosCluster{w: w}
	w.cluster, w.internalOf = c, map[string]string{}
	proxy := func(list *[]*chaosProxy, targets ...string) (addr string) {
		p, failed := newChaosProxy(targets...)
		if err = firstErr(err, failed); err != nil {
			return ""
		}
		*list = append(*list, p)
		return p.addr()
	}
	free := func() (addr string) {
		addr, failed := fleettest.FreeAddr()
		err = firstErr(err, failed)
		return addr
	}
	ca := filepath.Join(w.dir, "ca")
	if err := os.Mkdir(ca, 0o700); err != nil {
		return err
	}
	if _, err := bus.Init(ca); err != nil {
		return err
	}
	certificate := func(name string, role bus.Role) (dir string) {
		dir, _, failed := bus.Issue(ca, bus.Order{Name: name, Role: role})
		err = firstErr(err, failed)
		return dir
	}
	listen := []string{freePairOf(&err), freePairOf(&err)}
	var mqtt, web []string
	for i := range 2 {
		name, admin := "edge-"+strconv.Itoa(i+1), free()
		args := []string{"--role", "edge", "--cluster-dir", certificate(name, bus.Edge), "--http-addr", free(), "--mqtt-addr", free(),
			"--admin-addr", admin, "--cluster-servers", proxy(&c.buses, listen[0]) + "," + proxy(&c.buses, listen[1])}
		web, mqtt = append(web, args[5]), append(mqtt, args[7])
		c.edges = append(c.edges, newChaosProcess(w, name, admin, "/readyz", func() []string { return args }))
	}
	for i := range 2 {
		name, admin, internal := "core-"+strconv.Itoa(i+1), free(), free()
		w.internalOf[name] = proxy(&c.internal, internal)
		args := []string{"--role", "core", "--cluster-dir", certificate(name, bus.Core), "--cluster-listen", listen[i],
			"--cluster-routes", c.route(listen[1-i], &err), "--internal-addr", internal, "--admin-addr", admin, "--blobs-shared",
			"--database-url", c.database(&err), "--enrolment", "open",
			"--public-url", "http://" + w.http.addr(), "--mqtt-endpoint", w.mqtt.addr()}
		c.cores = append(c.cores, newChaosProcess(w, name, admin, "/healthz", func() []string { return args }))
	}
	if err != nil {
		return err
	}
	w.http.setTargets(web)
	w.mqtt.setTargets(mqtt)
	if c.balancer, err = newChaosProxyAt(w.httpAddr, web...); err != nil {
		return err
	}
	w.nodes, w.deciders = slices.Concat(c.cores, c.edges), len(c.cores)
	for _, p := range w.nodes {
		if err := w.writeClock(p, 0); err != nil {
			return err
		}
		go p.supervise()
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.watchLeaders(ctx)
	return nil
}

// firstErr returns the first error.
func firstErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// freePairOf returns an address whose port and the next one are free.
func freePairOf(err *error) string {
	for range 100 {
		addr, failed := fleettest.FreeAddr()
		if failed != nil {
			*err = firstErr(*err, failed)
			return ""
		}
		if ln, failed := net.Listen("tcp", nextPort(addr)); failed == nil {
			ln.Close()
			return addr
		}
	}
	*err = firstErr(*err, fmt.Errorf("no two free ports in a row"))
	return ""
}

// nextPort returns the address with the next port, on which a core's NATS server listens for the others.
func nextPort(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// route puts a proxy in front of a core's routes, and returns the address to name as its listener.
func (c *chaosCluster) route(listen string, err *error) string {
	addr := freePairOf(err)
	p, failed := newChaosProxyAt(nextPort(addr), nextPort(listen))
	*err = firstErr(*err, failed)
	c.routes = append(c.routes, p)
	return addr
}

// database puts a proxy in front of the database, for one core.
func (c *chaosCluster) database(err *error) string {
	config, failed := pgx.ParseConfig(c.w.postgres().URL())
	if *err = firstErr(*err, failed); *err != nil {
		return ""
	}
	p, failed := newChaosProxy(filepath.Join(config.Host, fmt.Sprintf(".s.PGSQL.%d", config.Port)))
	if *err = firstErr(*err, failed); *err != nil {
		return ""
	}
	c.databases = append(c.databases, p)
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: p.addr(),
		Path: "/" + config.Database, RawQuery: "sslmode=disable"}).String()
}

func (c *chaosCluster) close() {
	if c.stop != nil {
		c.stop()
	}
	for _, p := range slices.Concat([]*chaosProxy{c.balancer}, c.buses, c.routes, c.internal, c.databases) {
		if p != nil {
			p.close()
		}
	}
}

// leaderEvery is the time between two looks at which core leads. Two at once prove nothing: one may
// just have been replaced.
const leaderEvery = 250 * time.Millisecond

func (c *chaosCluster) watchLeaders(ctx context.Context) {
	leads := map[*chaosProcess]bool{}
	for tick := time.NewTicker(leaderEvery); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := 0
		for _, p := range c.cores {
			was := leads[p]
			if leads[p] = p.probe("/readyz") == http.StatusOK; !leads[p] {
				continue
			}
			n++
			if !was {
				c.w.journal.notef("%s leads", p.name)
				c.mu.Lock()
				c.led = append(c.led, time.Now())
				c.mu.Unlock()
			}
		}
		if n > 1 {
			c.mu.Lock()
			c.both = append(c.both, time.Now())
			c.mu.Unlock()
		}
	}
}

// restarts returns when fleetd started again, or another core began to lead.
func (w *chaosWorld) restarts() []time.Time {
	if c := w.cluster; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Clone(c.led[min(1, len(c.led)):])
	}
	p := w.nodes[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.starts[1:])
}

// serving returns the process that serves and that no fault affects now; 0: no process.
func (w *chaosWorld) serving() (pid int) {
	c := w.cluster
	if c == nil {
		return w.nodes[0].serving()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disturbed {
		return 0
	}
	return 1
}

// disturb notes that a fault begins, and returns a function that notes its end. A core ends when it
// loses the lease, whatever the reason; it is started again.
func (c *chaosCluster) disturb(f chaosFault) (end func()) {
	c.mu.Lock()
	c.fault, c.disturbed = f, true
	c.cut = append(c.cut, [2]time.Time{time.Now()})
	i := len(c.cut) - 1
	c.mu.Unlock()
	for _, p := range c.w.nodes {
		p.setExcused(slices.Contains(c.cores, p) || f.cutsDevices)
	}
	return func() {
		_ = c.w.await(45*time.Second*time.Duration(c.w.schedule.size.slack), "", c.w.isReady) // checked later
		time.Sleep(2 * time.Second)                                                           // a replaced core may end now
		for _, p := range c.w.nodes {
			p.setExcused(false)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.disturbed = false
		c.cut[i][1] = time.Now()
		if f.cutsDevices {
			c.cut[i] = [2]time.Time{}
		}
	}
}

func onLeader(do func(*chaosProcess)) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, _ chaosStep) error {
		p := w.leader()
		if p == nil {
			return fmt.Errorf("no core leads")
		}
		do(p)
		return nil
	}
}

func onStandby(do func(*chaosProcess)) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, _ chaosStep) error {
		for _, p := range w.cluster.cores {
			if p.probe("/readyz") != http.StatusOK {
				do(p)
				return nil
			}
		}
		return fmt.Errorf("no core stands by")
	}
}

func onCores(do func(*chaosProcess)) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, _ chaosStep) error {
		for _, p := range w.cluster.cores {
			do(p)
		}
		return nil
	}
}

func onEdge(do func(*chaosProcess)) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, step chaosStep) error {
		do(w.cluster.edges[step.edge()])
		return nil
	}
}

// endNode ends a process and keeps it from starting again until releaseNodes.
func endNode(s syscall.Signal) func(*chaosProcess) {
	return func(p *chaosProcess) {
		p.w.journal.notef("%v to %s", s, p.name)
		p.setHeld(true)
		p.signal(s)
	}
}

func freezeNode(p *chaosProcess) {
	p.w.journal.notef("%s is frozen", p.name)
	p.signal(syscall.SIGSTOP)
}

func releaseNodes(w *chaosWorld, _ chaosStep) error {
	for _, p := range w.nodes {
		p.setHeld(false)
		p.signal(syscall.SIGCONT)
	}
	return nil
}

// linksOfEdge are those between one edge and the cores.
func linksOfEdge(c *chaosCluster, step chaosStep) []*chaosProxy {
	return c.buses[2*step.edge() : 2*step.edge()+2]
}

// linksOfBus are the connections of all nodes to NATS servers of others.
func linksOfBus(c *chaosCluster, _ chaosStep) []*chaosProxy { return slices.Concat(c.buses, c.routes) }

// linksOfAll are all links between nodes.
func linksOfAll(c *chaosCluster, _ chaosStep) []*chaosProxy {
	return slices.Concat(c.buses, c.routes, c.internal)
}

func linksOfRoutes(c *chaosCluster, _ chaosStep) []*chaosProxy { return c.routes }

func onLinks(which func(*chaosCluster, chaosStep) []*chaosProxy, rule proxyRule) func(*chaosWorld, chaosStep) error {
	return func(w *chaosWorld, step chaosStep) error {
		rule := rule
		rule.share = 1
		for _, p := range which(w.cluster, step) {
			p.set(rule)
		}
		return nil
	}
}

// cutDatabase cuts the leader off from the database; the other core reaches it.
func cutDatabase(w *chaosWorld, _ chaosStep) error {
	leader := w.leader()
	if leader == nil {
		return fmt.Errorf("no core leads")
	}
	w.journal.notef("%s does not reach the database", leader.name)
	w.cluster.databases[slices.Index(w.cluster.cores, leader)].set(proxyRule{share: 1, stallUp: true, stallDown: true})
	return nil
}

func healLinks(w *chaosWorld, _ chaosStep) error {
	c := w.cluster
	for _, p := range slices.Concat(c.buses, c.routes, c.internal, c.databases) {
		p.set(proxyRule{})
	}
	return nil
}

func resetLinks(w *chaosWorld, step chaosStep) error {
	for _, p := range linksOfAll(w.cluster, step) {
		p.resetShare(1)
	}
	return nil
}

// leadersWrong checks the terms on record: each has one holder and ends before the next begins. At no
// time two cores answer as leader for longer than one needs to notice that it was replaced.
func leadersWrong(w *chaosWorld, _ *chaosLoad) (broken findings) {
	if w.cluster == nil {
		return nil
	}
	type term struct {
		Term  int
		Node  string
		Since time.Time
		Ended *time.Time
	}
	var terms []term
	err := w.asSuperuserOf("fleetd", func(ctx context.Context, db *pgx.Conn) error {
		rows, _ := db.Query(ctx, `SELECT term, node, since, ended FROM lease_terms ORDER BY term`)
		var err error
		terms, err = pgx.CollectRows(rows, pgx.RowToStructByName[term])
		return err
	})
	if err != nil {
		return findings{err.Error()}
	}
	for i, t := range terms[1:] {
		before := terms[i]
		if t.Term != before.Term+1 || !t.Since.After(before.Since) || before.Ended == nil || before.Ended.After(t.Since) {
			broken.addf("term %d of %s, from %v to %v, is followed by term %d of %s from %v", before.Term, before.Node,
				before.Since, before.Ended, t.Term, t.Node, t.Since)
		}
	}
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	for i, at := range w.cluster.both {
		if i > 0 && at.Sub(w.cluster.both[i-1]) < 2*leaderEvery {
			broken.addf("two cores answered as leader from %s on", w.cluster.both[i-1].Format("15:04:05.000"))
		}
	}
	if len(broken) == 0 {
		w.journal.notef("%d terms, one leader at a time", len(terms))
	}
	return broken
}

// devicesCut looks for devices that lost their connection while a fault affected no edge.
func devicesCut(w *chaosWorld, _ *chaosLoad) (broken findings) {
	if w.cluster == nil {
		return nil
	}
	rebooted := map[fleet.DeviceID]bool{}
	for order := range w.executed() {
		if order.tool == fleet.ToolReboot {
			rebooted[order.device] = true
		}
	}
	for _, span := range w.cluster.cut {
		for id, device := range w.ids {
			if rebooted[id] || w.inCampaign(id) || len(device.Faults()) > 0 {
				continue
			}
			if at, lost := w.seen.lostWithin(id, span[0], span[1]); lost {
				broken.addf("%s lost its connection at %s", id, at.UTC().Format("15:04:05.000"))
			}
		}
	}
	return broken
}
