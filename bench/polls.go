package main

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"
)

// pollBody is a boot poll of a stock board, reduced to the parts that vary in
// size.
const pollBody = `{"version":2,"language":"en-US","flash_size":16777216,"minimum_free_heap_size":"8213412","mac_address":"%[1]s","uuid":"%[2]s",` +
	`"chip_model_name":"esp32s3","chip_info":{"model":9,"cores":2,"revision":2,"features":18},"application":{"name":"xiaozhi","version":"2.4.2",` +
	`"compile_time":"Aug  8 2026T08:33:45Z","idf_version":"v6.0.2","elf_sha256":"9f2c4d6b8a01c3e5f7091b2d4f60718293a4b5c6d7e8f90a1b2c3d4e5f607101"},` +
	`"partition_table":[{"label":"ota_0","type":0,"subtype":16,"address":131072,"size":4128768},{"label":"ota_1","type":0,"subtype":17,"address":4259840,"size":4128768}],` +
	`"ota":{"label":"ota_0"},"board":{"type":"bench","name":"bench","ssid":"lab","rssi":-52,"channel":6,"ip":"192.168.4.27","mac":"%[1]s"}}`

// bootPoll sends the boot poll of device i over a new connection, and returns
// the answer.
func (r *rig) bootPoll(i int) ([]byte, error) {
	mac, uuid := r.ids[i].MAC(), fmt.Sprintf("5f0c0f4e-6f0a-4c7e-9d0e-%012x", i)
	client := httpClient{addr: r.http}
	defer client.close()
	status, body, err := client.do(httpRequest("POST", r.http, "/xiaozhi/ota/", fmt.Sprintf(pollBody, mac, uuid),
		"Connection: close", "Device-Id: "+mac, "Client-Id: "+uuid, "User-Agent: bench/2.4.2"))
	if err == nil && !bytes.Contains(body, []byte(`"mqtt"`)) {
		err = fmt.Errorf("status %d without credentials: %.200s", status, body)
	}
	return body, err
}

// bootPolls measures polls of known devices, with the load on the same cores.
func (r *rig) bootPolls(workers int, d time.Duration) reading {
	var n atomic.Int64
	return closedLoop(workers, d, func(int) error {
		_, err := r.bootPoll(int(n.Add(1)) % len(r.ids))
		return err
	})
}
