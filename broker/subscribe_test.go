package broker

import "testing"

// Mochi's index of topics takes more memory than a connection. It stays empty.
func TestSubscriptionsAreNotIndexed(t *testing.T) {
	w := newWire(t, 5, nil)
	w.connect()
	w.wantCodes(w.subscribe(9, nil, wish{downTopic(w.id), 1}), nil, []byte{1})
	if found := w.b.edge.MQTT().Topics.Subscribers(downTopic(w.id)); len(found.Subscriptions) != 0 {
		t.Errorf("the index has %v", found.Subscriptions)
	}
	if n := w.b.edge.MQTT().Info.Subscriptions; n != 0 {
		t.Errorf("mochi counts %d subscriptions", n)
	}
}
