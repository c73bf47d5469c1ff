package sim

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// httpWait is how long the firmware waits for headers, and for each part of a body.
const httpWait = 30 * time.Second

type localKey struct{}

// newClient creates the HTTP client that all devices share. It behaves as the firmware's (1.2):
// no redirects, no compression, one request per connection.
func newClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:           dial,
			DisableKeepAlives:     true,
			DisableCompression:    true,
			ResponseHeaderTimeout: httpWait,
			TLSHandshakeTimeout:   10 * time.Second,
			ReadBufferSize:        2 << 10,
			WriteBufferSize:       4 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request returns a request without the headers that Go adds by default.
func (d *Device) request(ctx context.Context, method, url string, body io.Reader) (*http.Request, error) {
	if from := d.localAddr(); from != nil {
		ctx = context.WithValue(ctx, localKey{}, from)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "") // sends no such header
	return req, nil
}

// fetch sends req. Reading the answer's body fails after 30 s without a byte.
func (f *Fleet) fetch(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	resp, err := f.http.Do(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &stallGuard{body: resp.Body, cancel: cancel, timer: time.AfterFunc(httpWait, cancel)}
	return resp, nil
}

// get makes a plain GET, as the firmware downloads images (7.3).
func (d *Device) get(ctx context.Context, url string) (*http.Response, error) {
	req, err := d.request(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return d.fleet.fetch(req)
}

type stallGuard struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func (g *stallGuard) Read(p []byte) (int, error) {
	n, err := g.body.Read(p)
	g.timer.Reset(httpWait)
	return n, err
}

func (g *stallGuard) Close() error {
	g.timer.Stop()
	err := g.body.Close()
	g.cancel()
	return err
}

// dialHTTP connects from the device's own source address, if it has one.
func (f *Fleet) dialHTTP(ctx context.Context, _, addr string) (net.Conn, error) {
	from, _ := ctx.Value(localKey{}).(*net.TCPAddr)
	return dialFrom(ctx, from, addr)
}

// localAddr returns the device's source address, or nil if the system chooses it.
func (d *Device) localAddr() *net.TCPAddr {
	if addrs := d.fleet.local; len(addrs) > 0 {
		return addrs[d.local]
	}
	return nil
}

// dialFrom uses IPv4 only, as the devices do.
func dialFrom(ctx context.Context, from *net.TCPAddr, addr string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1}
	if from != nil {
		dialer.LocalAddr, dialer.Control = from, chooseLate
	}
	return dialer.DialContext(ctx, "tcp4", addr)
}
