package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// A mosquitto is a Mosquitto broker tuned for this load: the yardstick.
type mosquitto struct {
	cmd  *exec.Cmd
	addr string
}

func startMosquitto(dir string) (*mosquitto, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	path := filepath.Join(dir, "mosquitto.conf")
	text := "listener " + port + " 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\n" +
		"max_inflight_messages 0\npersistence false\nlog_type none\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return nil, err
	}
	binary, err := exec.LookPath("mosquitto")
	if err != nil {
		binary = "/usr/sbin/mosquitto"
	}
	m := &mosquitto{cmd: exec.Command(binary, "-c", path), addr: addr}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("mosquitto is the yardstick; install Debian's package: %w", err)
	}
	return m, waitFor(addr)
}

func (m *mosquitto) stop() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// startEcho starts a Mosquitto with devices, and a controller for n calls in
// flight.
func startEcho(dir string, devices, n int, child *deviceProcess) (variant, *controller, error) {
	m, err := startMosquitto(dir)
	if err != nil {
		return variant{}, nil, err
	}
	var c *controller
	if _, err = child.connect(m.addr, 64, mosquittoDevices(max(devices, n))); err == nil {
		c, err = newController(m.addr, n)
	}
	if err != nil {
		m.stop()
		return variant{}, nil, err
	}
	return variant{do: c.call, calls: 1, stop: func() { c.close(); m.stop() }, processes: []process{
		{name: ofBroker, pid: m.cmd.Process.Pid}, self(ofLoad), child.process(ofDevices)}}, c, nil
}

func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

func waitFor(addr string) error {
	var err error
	for range 100 {
		var conn net.Conn
		if conn, err = net.Dial("tcp", addr); err == nil {
			return conn.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// mosquittoDevices returns devices in the form that a Mosquitto needs.
func mosquittoDevices(n int) []credentials {
	devices := make([]credentials, n)
	for i := range devices {
		devices[i] = credentials{ClientID: "d" + strconv.Itoa(i), Down: downTopic(i), Up: "fleet/" + strconv.Itoa(i) + "/up",
			Subscribe: true}
	}
	return devices
}

func downTopic(i int) string { return "devices/p2p/" + strconv.Itoa(i) }

// A controller makes calls through a Mosquitto without recording them: ids
// contain the worker, and answers go to its channel.
type controller struct {
	conn    net.Conn
	mu      sync.Mutex
	out     *bufio.Writer
	kick    chan struct{}
	answers []chan struct{}
	seq     []int
}

// workerBits is the number of bits of an id that identify the waiting worker.
const workerBits = 16

func newController(addr string, workers int) (*controller, error) {
	conn, r, err := dial(addr, credentials{ClientID: "controller", Down: "fleet/+/up", Subscribe: true})
	if err != nil {
		return nil, err
	}
	c := &controller{conn: conn, out: bufio.NewWriterSize(conn, 64<<10), kick: make(chan struct{}, 1),
		answers: make([]chan struct{}, workers), seq: make([]int, workers)}
	for i := range c.answers {
		c.answers[i] = make(chan struct{}, 1)
	}
	go c.read(r)
	go c.flush()
	return c, nil
}

func (c *controller) read(r *bufio.Reader) {
	big := bufio.NewReaderSize(r, 64<<10)
	var buf []byte
	for {
		_, body, err := readPacket(big, buf)
		if err != nil {
			return
		}
		buf = body[:0]
		if id, err := strconv.Atoi(string(callID(payload(body)))); err == nil {
			c.answers[id&(1<<workerBits-1)] <- struct{}{}
		}
	}
}

// flush writes everything that gathered since the last write: one system call
// carries the requests of many workers.
func (c *controller) flush() {
	for range c.kick {
		c.mu.Lock()
		err := c.out.Flush()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// send publishes one call to a device for a worker.
func (c *controller) send(worker, device int) error {
	c.seq[worker]++
	id := c.seq[worker]<<workerBits | worker
	request := fmt.Appendf(nil, `{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"self.audio_speaker.set_volume","arguments":{"volume":50}}}}`, id)
	packet := publishPacket(downTopic(device), request)
	c.mu.Lock()
	_, err := c.out.Write(packet)
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return err
}

// call sends a call and waits for its answer.
func (c *controller) call(worker int) error {
	if err := c.send(worker, worker); err != nil {
		return err
	}
	select {
	case <-c.answers[worker]:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("no answer from device %d", worker)
	}
}

func (c *controller) close() { c.conn.Close() }

// fanOut calls devices 0 to n-1, a window of them at a time, and returns how
// long that took.
func (c *controller) fanOut(n, window int) (time.Duration, error) {
	begin := time.Now()
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	errs := make(chan error, window)
	for w := range window {
		go func() {
			for device := range next {
				if err := c.send(w, device); err != nil {
					errs <- err
					return
				}
				select {
				case <-c.answers[w]:
				case <-time.After(10 * time.Second):
					errs <- fmt.Errorf("no answer from device %d", device)
					return
				}
			}
			errs <- nil
		}()
	}
	for range window {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}
