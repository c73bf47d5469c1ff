package edge

import (
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/broker/dialect"
)

func TestSubscriptionsAreLimited(t *testing.T) {
	lamp, _ := dialect.OverMQTT(dialect.Connect{ClientID: "lamp-1", Version: 5, Username: "mcp.x"})
	c := &mqttCarrier{connection: &connection{dialect: lamp}}
	subscribe := func(i int) byte {
		filter := fmt.Sprintf("$mcp-server/lamp-1/name/%d", i)
		return c.subscribe(packets.Subscription{Filter: filter, Qos: 1}, false).Code
	}
	for i := range maxSubscriptions {
		if code := subscribe(i); code != 1 {
			t.Errorf("subscription %d: code %#x, want 1", i+1, code)
		}
	}
	if code := subscribe(maxSubscriptions); code != packets.ErrQuotaExceeded.Code {
		t.Errorf("one more: code %#x, want %#x", code, packets.ErrQuotaExceeded.Code)
	}
	if code := subscribe(0); code != 1 {
		t.Errorf("the first one again: code %#x, want 1", code)
	}
}
