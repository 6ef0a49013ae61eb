complete -c stelia-placement -l kubeconfig -d 'The kubeconfig. It is read again when it or a file that it names changes. Default: as for kubectl, or the pod\'s service account' -r -F
complete -c stelia-placement -l listen -d 'Address on which requests of kube-scheduler are answered' -r
complete -c stelia-placement -l tls-cert -d 'Server certificate with its chain, PEM. It is read again when it changes' -r -F
complete -c stelia-placement -l tls-key -d 'Private key of the server certificate, PEM' -r -F
complete -c stelia-placement -l tls-client-ca -d 'Certificates of the CAs whose clients are answered, PEM. Without it, every client that reaches the address is answered' -r -F
complete -c stelia-placement -l probes -d 'Another address for /healthz, /readyz, /leader and /metrics, without certificates' -r
complete -c stelia-placement -l lease-namespace -d 'Namespace of the Lease' -r
complete -c stelia-placement -l lease-name -d 'Name of the Lease' -r
complete -c stelia-placement -l identity -d 'Name of this replica in the Lease, to which a random suffix is added' -r
complete -c stelia-placement -l service -d 'Service without a selector that is directed to this replica while it is the leader, by an EndpointSlice of the Service\'s name in the namespace of the Lease' -r
complete -c stelia-placement -l address -d 'Address of this replica in the EndpointSlice. The port is that of --listen' -r
complete -c stelia-placement -l scoring-strategy -d 'What Koordinator\'s part of the score favours: MostAllocated, BalancedAllocation or LeastAllocated' -r
complete -c stelia-placement -l completions -d 'Print a completion script and exit' -r -f -a "bash\t''
elvish\t''
fish\t''
powershell\t''
zsh\t''"
complete -c stelia-placement -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-placement -s V -l version -d 'Print version'
