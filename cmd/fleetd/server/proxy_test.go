package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/pires/go-proxyproto"
)

// Behind load balancers the device's record has the device's address, from the
// boot poll and from MQTT; and the metrics contain the certificate's expiry.
func TestBehindProxies(t *testing.T) {
	t.Parallel()
	files := newCertFiles(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	files.writePair(1, expires)
	d := startTestServer(t, func(c *Config) {
		c.MQTTSAddr, c.TLSCert, c.TLSKey = "127.0.0.1:0", files.cert, files.key
		c.ProxyProtocol, c.TrustedProxies = []string{"127.0.0.1", "10.0.0.0/8"}, []string{"10.0.0.0/8"}
	})

	remote := func() string {
		var devices list[deviceView]
		d.rest("GET", "/devices", nil, &devices)
		if len(devices.Items) != 1 {
			return ""
		}
		var device struct {
			RemoteAddr string `json:"remote_addr"`
		}
		d.rest("GET", "/devices/"+devices.Items[0].ID, nil, &device)
		return device.RemoteAddr
	}
	req, err := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/", bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Device-Id": "02:00:00:00:00:01", "Client-Id": "4f1c2d3e-0000-4000-8000-000000000001",
		"User-Agent": "bread-compact-wifi/2.4.2", "X-Forwarded-For": "203.0.113.5, 198.51.100.9, 10.0.0.2",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		MQTT struct {
			ClientID string `json:"client_id"`
			Username string
			Password string
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.MQTT.Password == "" {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	d.eventually("the poll's address on record", func() bool { return remote() == "198.51.100.9" })

	conn, err := net.Dial("tcp", d.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.7:4711"))
	if _, err := proxyproto.HeaderProxyFromAddrs(2, from, conn.LocalAddr()).WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	client := paho.NewClient(paho.ClientConfig{Conn: conn})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ack, err := client.Connect(ctx, &paho.Connect{ClientID: answer.MQTT.ClientID, KeepAlive: 60, CleanStart: true,
		UsernameFlag: true, Username: answer.MQTT.Username, PasswordFlag: true, Password: []byte(answer.MQTT.Password)})
	if err != nil {
		t.Fatalf("%+v, %v", ack, err)
	}
	d.eventually("the connection's address on record", func() bool { return remote() == "192.0.2.7" })
	if err := client.Disconnect(&paho.Disconnect{}); err != nil {
		t.Error(err)
	}

	if resp, err = http.Get("http://" + d.admin + "/metrics"); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for _, want := range []string{
		"fleetd_tls_certificate_expiry_timestamp_seconds 1.", "fleetd_tls_certificate_files_bad 0",
		"fleetd_mqtt_tls_handshakes 0", "fleetd_mqtt_protocol_errors_total 0",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics do not have %q", want)
		}
	}
}
