package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"fleetd/fleet/operator"
	"fleetd/mcp/gateway"
)

// With FLEETD_CONFORMANCE, this test serves the gateway with the fixtures of the
// conformance suite until its standard input ends: foreign/tests/conformance.test.mjs
// runs the suite.
func TestServeConformance(t *testing.T) {
	if os.Getenv("FLEETD_CONFORMANCE") == "" {
		t.Skip("it serves foreign/tests/conformance.test.mjs")
	}
	address, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *gateway.Options) { o.PublicURL = "http://" + address.Addr().String() })
	w.gateway.AddFixtures(unit)
	go func() { _ = w.Config.Serve(address) }() // ends with the server
	door, _ := json.Marshal(map[string]string{"url": "http://" + address.Addr().String(),
		"token": w.token(t, operator.TokenRequest{})})
	fmt.Printf("%s\n", door)
	_, _ = io.Copy(io.Discard, os.Stdin)
	address.Close()
}
