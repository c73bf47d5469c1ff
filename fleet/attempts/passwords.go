package attempts

import (
	"net/netip"
	"strings"
	"time"
)

// Bounds of wrong passwords. Someone who guesses an operator's password from elsewhere does not lock out
// that operator: a browser in which the operator has signed in before is counted separately, and gets in
// no matter how many others guess.
var (
	perPair    = Bound{"password of a name from one network", 10, time.Minute}
	perNetwork = Bound{"passwords from one network", 20, 3 * time.Second}
	perName    = Bound{"password of a name", 60, 3 * time.Second} // slows many networks down
	perBrowser = Bound{"password in a known browser", 10, time.Minute}
)

// A Password is one try to enter an operator's password.
type Password struct {
	Name    string
	Address string
	Browser string // a browser in which this operator has signed in before; "" for others
}

// Keys returns what the try counts against.
func (p Password) Keys() []Key {
	if p.Browser != "" {
		return []Key{{&perBrowser, p.Browser}}
	}
	name, network := strings.ToLower(strings.TrimSpace(p.Name)), Network(p.Address)
	if len(name) > 100 { // longer than the name of any operator
		name = name[:100]
	}
	return []Key{{&perPair, network + " " + name}, {&perNetwork, network}, {&perName, name}}
}

// Network returns the network of an address: 24 bits of IPv4 or 64 bits of IPv6, which is what one
// customer has. A string that is not an address is its own network.
func Network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 24
	}
	p, _ := ip.Prefix(bits) // cannot fail: the address has no zone, and more bits than this
	return p.String()
}
