// Shows what is at each URL of its arguments but the first, which is the address of every name.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(os.Args[1], port))
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: dial,
		// The hosts of the test have certificates that they have signed themselves.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	for _, url := range os.Args[2:] {
		response, err := client.Get(url)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		response.Body.Close()
		fmt.Println(string(body))
	}
}
