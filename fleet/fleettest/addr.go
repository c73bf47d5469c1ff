package fleettest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"sync"
)

// Outgoing connections use ports from 32768 on Linux, from 49152 on other systems.
const firstPort, portCount = 10_000, 20_000

var handedOut sync.Map // ports used by this process

// FreeAddr returns a loopback address for a program that a test starts, stops and starts
// again. While the program is stopped, the system does not give its port to an outgoing
// connection, unlike a port from port 0. On Linux, where all of 127.0.0.0/8 is this machine,
// the host is one of 16 million, so that concurrent tests do not collide either.
func FreeAddr() (string, error) {
	var err error
	for range 100 {
		port := firstPort + rand.IntN(portCount)
		if _, used := handedOut.LoadOrStore(port, nil); used {
			continue
		}
		addr := net.JoinHostPort(host, strconv.Itoa(port))
		var ln net.Listener
		if ln, err = net.Listen("tcp", addr); err == nil {
			err = ln.Close()
			AwaitForks()
			return addr, err
		}
	}
	return "", fmt.Errorf("no free port from %d to %d: %w", firstPort, firstPort+portCount-1, err)
}

// host is the same for all addresses of this process, because a server's HTTP host is also
// the host of the broker that devices are sent to.
var host = func() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}()
