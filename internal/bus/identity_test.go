package bus_test

import (
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/internal/bus"
)

func TestInitAndIssue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	c, err := bus.Init(dir)
	if err != nil || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(string(c)) {
		t.Fatalf("Init = %q, %v", c, err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = bus.Init(dir)
	mustContain(t, err, dir, "ca.pem")
	if again, err := os.ReadFile(filepath.Join(dir, "ca-key.pem")); err != nil || string(again) != string(key) {
		t.Error("the key was replaced")
	}
	out, expires, err := bus.Issue(dir, bus.Order{Name: "edge-1", Role: bus.Edge, Hosts: []string{"edge.example.com", "10.0.0.7"}})
	if err != nil || out != filepath.Join(dir, "edge-1") {
		t.Fatalf("Issue = %s, %v", out, err)
	}
	if days := time.Until(expires).Hours() / 24; days < 364 || days > 366 {
		t.Errorf("valid for %.1f days", days)
	}
	files, err := os.ReadDir(out)
	if err != nil || len(files) != 3 { // and no ca-key.pem
		t.Errorf("%v: %v", files, err)
	}
	for name, want := range map[string]os.FileMode{dir + "/ca-key.pem": 0o600, out + "/node-key.pem": 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%v: %v", info.Mode(), err)
		}
	}
	id, err := bus.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	if id.Cluster != c || id.Name != "edge-1" || id.Role != bus.Edge || !id.Expires().Equal(expires.Truncate(time.Second)) {
		t.Errorf("identity %s %v, expires %v", id.Cluster, id.Node, id.Expires())
	}
	cert := loadPair(t, out).Leaf
	for _, host := range []string{"edge-1.edge." + string(c) + ".fleetd", "edge." + string(c) + ".fleetd", "edge.example.com",
		"10.0.0.7"} {
		if err := cert.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if cert.VerifyHostname("core."+string(c)+".fleetd") == nil {
		t.Error("the certificate of an edge is valid for a core")
	}

	for _, tt := range []struct {
		name  string
		order bus.Order
		want  string
	}{
		{"name", bus.Order{Name: "Edge_1", Role: bus.Edge}, "a-z"},
		{"empty name", bus.Order{Role: bus.Edge}, "not a node name"},
		{"path as name", bus.Order{Name: "../x", Role: bus.Edge}, "not a node name"},
		{"role", bus.Order{Name: "x", Role: "all"}, "core or edge"},
		{"days", bus.Order{Name: "x", Role: bus.Edge, Days: -1}, "give 1 to"},
		{"longer than the CA", bus.Order{Name: "x", Role: bus.Edge, Days: 4000}, "give 1 to"},
		{"host with a port", bus.Order{Name: "x", Role: bus.Edge, Hosts: []string{"h:1"}}, "without a port"},
		{"the name of a core", bus.Order{Name: "x", Role: bus.Edge, Hosts: []string{"core." + string(c) + ".FLEETD."}}, ".fleetd"},
		{"into the CA's directory", bus.Order{Name: "x", Role: bus.Edge, Out: dir}, "ca-key.pem"},
		{"over another node", bus.Order{Name: "x", Role: bus.Edge, Out: out}, "edge-1"},
		{"over another role", bus.Order{Name: "edge-1", Role: bus.Core, Out: out}, "edge-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := bus.Issue(dir, tt.order)
			mustContain(t, err, tt.want)
		})
	}
	_, _, err = bus.Issue(newCluster(t), bus.Order{Name: "edge-1", Role: bus.Edge, Out: out})
	mustContain(t, err, "another cluster")
	_, _, err = bus.Issue(t.TempDir(), bus.Order{Name: "x", Role: bus.Edge})
	mustContain(t, err, "fleetd cluster init")
	if _, err := bus.Open(out); err != nil {
		t.Errorf("after the refused orders: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "ca-key.pem"), 0o604); err != nil {
		t.Fatal(err)
	}
	_, _, err = bus.Issue(dir, bus.Order{Name: "x", Role: bus.Edge})
	mustContain(t, err, "chmod 600")
}

func TestOpenRefuses(t *testing.T) {
	dir := newCluster(t)
	write := func(path, from string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(out string)
		want   string
	}{
		{"the CA's key", func(out string) { write(out+"/ca-key.pem", dir+"/ca-key.pem") }, "fleetd cluster cert"},
		{"no CA", func(out string) { os.Remove(out + "/ca.pem") }, "fleetd cluster cert"},
		{"a node as the CA", func(out string) { write(out+"/ca.pem", out+"/node.pem") }, "not the CA of a cluster"},
		{"no certificate", func(out string) { os.Remove(out + "/node.pem") }, "node.pem"},
		{"no key", func(out string) { os.Remove(out + "/node-key.pem") }, "node-key.pem"},
		{"garbage", func(out string) { os.WriteFile(out+"/node.pem", []byte("x"), 0o600) }, "PEM"},
		{"another CA", func(out string) { write(out+"/ca.pem", newCluster(t)+"/ca.pem") }, "same cluster"},
		{"another key", func(out string) { write(out+"/node-key.pem", issue(t, dir, "x", bus.Edge)+"/node-key.pem") },
			"do not work"},
		{"a public key", func(out string) { os.Chmod(out+"/node-key.pem", 0o644) }, "chmod 600"},
		{"an unknown role", func(out string) {
			forge(t, dir, out, func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"all"} })
		}, "core and edge"},
		{"an expired certificate", func(out string) {
			forge(t, dir, out, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })
		}, "expired on"},
		{"a slow clock", func(out string) {
			forge(t, dir, out, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
		}, "clock of this machine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := issue(t, dir, "edge", bus.Edge)
			tt.damage(out)
			_, err := bus.Open(out)
			mustContain(t, err, tt.want)
		})
	}
}

// A clock that was never set is named in the error.
func TestOpenWithoutClock(t *testing.T) {
	out := issue(t, newCluster(t), "edge", bus.Edge)
	synctest.Test(t, func(t *testing.T) { // it is the year 2000
		_, err := bus.Open(out)
		mustContain(t, err, "not valid before", "2000-01-01T00:00:00Z")
	})
}

// A node uses its renewed certificate without a restart, and no other.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t)
		out := issue(t, dir, "edge", bus.Edge)
		id, err := bus.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		first := id.Expires()
		if _, _, err := bus.Issue(dir, bus.Order{Name: "edge", Role: bus.Edge, Days: 700, Out: out}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		second := id.Expires()
		if second.Sub(first).Hours() < 300*24 {
			t.Errorf("expires %v after the renewal", second)
		}
		forge(t, dir, out, func(c *x509.Certificate) { c.Subject.CommonName = "other" })
		time.Sleep(time.Minute)
		if id.Expires() != second || id.Name != "edge" {
			t.Error("the node uses the certificate of another")
		}
		if err := os.Remove(out + "/node.pem"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if id.Expires() != second {
			t.Error("without files, the node has no certificate")
		}
	})
}

// The same identities protect HTTP between edges and cores.
func TestHTTP(t *testing.T) {
	dir := newCluster(t)
	core, edge := join(t, dir, "core", bus.Core), join(t, dir, "edge", bus.Edge)
	start := func(roles ...bus.Role) string {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			peer, err := bus.PeerOf(r.TLS)
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write([]byte(peer.Role + " " + bus.Role(peer.Name)))
		}))
		srv.TLS, srv.Config.ErrorLog = core.ServerTLS(roles...), log.New(io.Discard, "", 0)
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv.URL
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: edge.ClientTLS(), DisableKeepAlives: true}}
	resp, err := client.Get(start())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text := make([]byte, 20)
	if n, _ := resp.Body.Read(text); string(text[:n]) != "edge edge" {
		t.Errorf("the core knows its peer as %q", text[:n])
	}
	_, err = client.Get(start(bus.Core))
	mustContain(t, err, "bad certificate")
	if _, err := bus.PeerOf(nil); err == nil {
		t.Error("a connection without TLS has a peer")
	}
}
